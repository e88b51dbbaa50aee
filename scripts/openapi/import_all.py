"""Imports every module of the package that the first argument names."""

import importlib
import pkgutil
import sys

package = importlib.import_module(sys.argv[1])
modules = [module.name for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
for name in modules:
    importlib.import_module(name)
print(f"{len(modules)} modules of {package.__name__} can be imported")
