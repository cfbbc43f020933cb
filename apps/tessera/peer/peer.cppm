// A training of this program beside the same training under another one.
export module tessera.app.peer;

export import :torch_run;  // under PyTorch: what it can compute, its files, its steps
