"""Tools that know no Gaussian process: linear algebra, quadrature, parameter stores, compiled functions."""
