-- No arguments.
wake()
return 1
