"""Program to device text: the plan, the kernel IR, its printers and what a printed kernel calls."""
