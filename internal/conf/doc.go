// Package conf holds the settings of a broker: one table with the name, default, allowed values and meaning of each, and
// the typed struct that the table fills from flags, environment and defaults, in this order. docs/configuration.md is
// written from the table by the test of this package:
//
//	go test ./internal/conf -update
//
// A wrong value is refused with one line that names the setting, the value, where it came from and what is allowed.
// Packages do not read Settings; cmd/broker hands each the few values it takes.
package conf
