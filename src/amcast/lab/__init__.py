"""Where the rooms meet: plans become runs, runs become verdicts, protocols are held to their claims."""
