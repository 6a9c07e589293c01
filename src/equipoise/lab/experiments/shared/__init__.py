"""What experiments share: sweeps and their statistics, checks of trials, tasks, readings of watched runs."""
