"""Results of simulations: tables, bars that must hold, and plots."""
