"""Every patch of torch and ExecuTorch, in force while one of our programs is captured or lowered."""
