"""Public conformance kits and leak checks.  Nothing that ships imports this package."""
