"""Keeps the processes of an async run going as children of one parent, and leaves none behind."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from rft_core.children.errors import ChildError
from rft_core.children.launching import Life, launch
