"""Fakes and conformance suites, for the tests here and for parts written elsewhere."""
