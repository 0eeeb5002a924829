"""What every room shares: errors, text, units and thresholds. It knows no other room."""
