"""The papers' evaluations as experiments: a plan with a grid, claims as data, a table, verdicts and one page.

    experiments/claims.toml            every claim of the five papers, and why some cannot be tested here
    experiments/NAME/experiment.toml   question, plan, grid, reduced grid, claims of the experiment
    experiments/NAME/table.csv         one row per finished cell; a later run continues after the last one
    experiments/NAME/picture.svg       drawn from the table

`amcast reproduce` runs them; docs/reproduction.md is made of their tables.
"""
