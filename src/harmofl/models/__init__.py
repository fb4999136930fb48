"""Networks from MONAI, wrapped so that they also give a representation."""
