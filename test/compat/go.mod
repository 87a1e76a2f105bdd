module github.com/skeinmq/skein/test/compat

go 1.26.0

require github.com/polarstreams/go-client v0.4.1-0.20230414080111-cf090188a409

require (
	github.com/google/uuid v1.3.0 // indirect
	github.com/klauspost/compress v1.15.15 // indirect
	golang.org/x/net v0.0.0-20220225172249-27dd8689420f // indirect
	golang.org/x/text v0.3.7 // indirect
)
