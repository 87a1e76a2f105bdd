package harness

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
)

// BinaryEnv names a variable with the path of a broker that is already built, for runs that test a binary of another
// build: the static one, or one with the race detector.
const BinaryEnv = "SKEIN_TEST_BINARY"

// Main is the TestMain of a package that starts brokers. It builds the broker, runs the tests and removes the binary.
func Main(m *testing.M) {
	_, err := Binary()
	code := 1
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
	} else {
		code = m.Run()
	}
	os.RemoveAll(buildDir)
	os.Exit(code)
}

var buildDir string // of the binary that Binary built, removed by Main

// Binary is the path of the broker under test, built at the first call.
var Binary = sync.OnceValues(func() (string, error) {
	if path := os.Getenv(BinaryEnv); path != "" {
		return path, nil
	}
	dir, err := os.MkdirTemp("", "skein-binary-")
	if err != nil {
		return "", err
	}
	buildDir = dir
	path := filepath.Join(dir, "broker")
	build := exec.Command("go", "build", "-o", path, "./cmd/broker")
	build.Dir = Root()
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the broker: %w\n%s", err, out)
	}
	return path, nil
})

// Root is the top folder of the repository.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(filepath.Dir(filepath.Dir(file)))
}
