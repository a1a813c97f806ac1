"""Tools that test ``auxout.client``: conversations at random, mutants, and the merge functions of other frameworks."""
