"""The rules, one file each. `fitscope.diagnose.RULES` lists them."""
