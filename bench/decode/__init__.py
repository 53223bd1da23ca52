"""`orchid bench decode`: what decoding reaches, beside the machine and beside other runtimes."""
