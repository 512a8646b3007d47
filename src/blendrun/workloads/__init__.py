"""Made-up jobs: mixes of length traces with a wanted density and prefix sharing."""
