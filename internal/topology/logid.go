package topology

import "strconv"

// String is the id of the topic and the partition, as the data folder has them: "3c5b8a52-0d1c-5a0e-8f57-0b6c8f2f9a01/7".
func (l LogID) String() string { return l.Topic.String() + "/" + strconv.Itoa(int(l.Partition)) }
