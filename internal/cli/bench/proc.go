package bench

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// clockTick is the unit of CPU times in /proc on Linux, whatever the kernel's own.
const clockTick = 10 * time.Millisecond

// Meter measures the CPU that this process and the brokers spend. Brokers are measured on Linux only.
type Meter struct {
	pids    []int
	client  time.Duration
	brokers time.Duration
}

// StartMeter notes where all stand. pids are broker processes on this machine, none is fine.
func StartMeter(pids []int) (*Meter, error) {
	m := &Meter{pids: pids, client: processCPU()}
	var err error
	m.brokers, _, err = m.spent()
	return m, err
}

// Stop gives what was spent since the start for so many records; nil for none.
func (m *Meter) Stop(records int64) (*CPU, error) {
	if records == 0 {
		return nil, nil
	}
	perMillion := func(d time.Duration) float64 { return round3(d.Seconds() / float64(records) * 1e6) }
	c := &CPU{ClientPerMillion: perMillion(processCPU() - m.client)}
	brokers, peak, err := m.spent()
	if err != nil {
		return c, err
	}
	c.BrokerPerMillion, c.BrokerPeakBytes = perMillion(brokers-m.brokers), peak
	return c, nil
}

// spent is the CPU of all brokers, and the largest peak of resident memory.
func (m *Meter) spent() (cpu time.Duration, peak int64, err error) {
	for _, pid := range m.pids {
		dir := "/proc/" + strconv.Itoa(pid)
		stat, err := os.ReadFile(dir + "/stat")
		if err != nil {
			return 0, 0, fmt.Errorf("CPU of process %d: %w", pid, err)
		}
		ticks, err := statTicks(stat)
		if err != nil {
			return 0, 0, fmt.Errorf("CPU of process %d: %w", pid, err)
		}
		cpu += time.Duration(ticks) * clockTick
		status, err := os.ReadFile(dir + "/status")
		if err != nil {
			return 0, 0, fmt.Errorf("memory of process %d: %w", pid, err)
		}
		peak = max(peak, statusPeak(string(status)))
	}
	return cpu, peak, nil
}

// statTicks is utime + stime, the 14th and 15th field of /proc/PID/stat; the second may hold spaces, in parentheses.
func statTicks(stat []byte) (int64, error) {
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 13 {
		return 0, fmt.Errorf("%d fields in stat", len(fields)+2)
	}
	user, err := strconv.ParseInt(fields[11], 10, 64)
	if err != nil {
		return 0, err
	}
	system, err := strconv.ParseInt(fields[12], 10, 64)
	return user + system, err
}

// statusPeak is VmHWM of /proc/PID/status in bytes, 0 when it is not there.
func statusPeak(status string) int64 {
	_, after, found := strings.Cut(status, "VmHWM:")
	if !found {
		return 0
	}
	kib, _, _ := strings.Cut(strings.TrimSpace(after), " ")
	n, err := strconv.ParseInt(kib, 10, 64)
	if err != nil {
		return 0
	}
	return n << 10
}
