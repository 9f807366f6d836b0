"""The explorer: a widget in which schedules are tried by clicking, with the reasons and the costs of every move."""
