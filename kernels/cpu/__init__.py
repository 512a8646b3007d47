"""CPU kernels, compiled at first use with the system C++ compiler, else in plain torch."""
