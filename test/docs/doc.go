// Package docs runs the commands that README.md and the pages under docs/ tell readers to type. A fenced block of sh
// that follows a line `<!-- tested -->` is run by bash, the blocks of one page in order against one fresh broker, in a
// folder that holds the broker as ./broker. With `<!-- tested: TEXT -->` what the block prints must contain TEXT.
package docs
