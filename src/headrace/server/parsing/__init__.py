"""Reading answers: tool calls and reasoning out of the model's text. No HTTP, no engine."""
