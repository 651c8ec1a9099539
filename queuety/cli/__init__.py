"""The command line: parse, call one verb, print."""
