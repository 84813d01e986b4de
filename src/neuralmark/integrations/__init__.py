"""Thin bridges to training frameworks, one file each."""
