"""Makes `runs`, the helpers of many tests, importable from every folder below."""
