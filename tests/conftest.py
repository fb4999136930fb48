"""Makes `runs`, the helpers of many tests, importable from every folder below."""

import torch

torch.set_num_threads(1)  # the tests' tensors are tiny: more threads only wait for one another
