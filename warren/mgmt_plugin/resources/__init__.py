"""The resources and actions of the API, a file for each subject."""
