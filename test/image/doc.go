// Package image builds what the Dockerfile builds and lays the image out by hand, so that its promises are tested
// where no container engine is: a static binary alone in a read-only root, a uid without rights, one writable folder.
// It needs root and runs with the build tag faults.
package image
