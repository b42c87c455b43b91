"""What the experiment on speculation is made of: drafters, runs, figures, the law of its draws."""
