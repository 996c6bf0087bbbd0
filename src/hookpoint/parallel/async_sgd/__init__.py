"""AsyncSGD: a parameter server, and workers at their own pace."""
