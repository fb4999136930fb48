"""From files to tensors; phantoms/ makes its own."""
