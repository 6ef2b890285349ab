"""What the tests and the benchmarks share: brokers to run against, and short ways to talk to them."""
