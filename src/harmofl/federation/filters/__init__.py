"""What becomes of a site's update between its training and the server: one filter a file, one chain of them."""
