// LibTorch for CPUs lacks the file that its build for GPUs makes.
#pragma once
