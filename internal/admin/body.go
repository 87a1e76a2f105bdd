package admin

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/skeinmq/skein/internal/httpd"
	"github.com/skeinmq/skein/internal/topology"
)

// maxBody is enough for any request of this API.
const maxBody = 64 << 10

// readJSON reads the body of r, one JSON object, into v. Errors are topology.ErrInvalid, with the field that is wrong or
// unknown, and those of httpd.ReadBody.
func readJSON(w http.ResponseWriter, r *http.Request, v any) error {
	body, release, err := httpd.ReadBody(w, r, maxBody)
	if err != nil {
		return err
	}
	defer release()
	d := json.NewDecoder(bytes.NewReader(body))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("%w body: %s", topology.ErrInvalid, explain(err))
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("%w body: something follows the JSON object", topology.ErrInvalid)
	}
	return nil
}

// explain says what is wrong with a body in terms of JSON, without the names of our types.
func explain(err error) string {
	var wrong *json.UnmarshalTypeError
	var syntax *json.SyntaxError
	switch {
	case errors.As(err, &wrong):
		field := wrong.Field
		if field == "" {
			field = "the body"
		}
		return fmt.Sprintf("%s is a JSON %s; allowed is %s", field, wrong.Value, jsonType(wrong.Type.String()))
	case errors.As(err, &syntax):
		return fmt.Sprintf("it is no JSON at byte %d: %v", syntax.Offset, syntax)
	case errors.Is(err, io.EOF):
		return "it is empty; allowed is a JSON object"
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "it ends in the middle of the JSON object"
	default:
		return strings.TrimPrefix(err.Error(), "json: ")
	}
}

func jsonType(goType string) string {
	switch strings.TrimLeft(goType, "*") {
	case "int", "int32", "int64", "topology.Partition", "topology.Offset":
		return "a whole number"
	case "string":
		return "a string"
	case "bool":
		return "true or false"
	default:
		return "a JSON object"
	}
}
