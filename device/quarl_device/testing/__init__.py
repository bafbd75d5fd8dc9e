"""Fakes and conformance suites that ship with the library, for this project's tests and for its users'."""
