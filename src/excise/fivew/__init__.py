"""Making a benchmark of who, what, when, where and why questions out of any questions and answers."""
