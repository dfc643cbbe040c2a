"""The console: the pool over HTTP, for programs that speak REST and for people with a browser (docs/console.md)."""
