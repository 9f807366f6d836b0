"""What a program is and means: types, operations, rules, programs; pure Python and NumPy."""
