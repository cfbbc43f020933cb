export module tessera.app.bench;

export import :run_bench;      // the tables of 'tessera bench'
export import :dispatch_rows;  // small programs on plain and distributed tensors
