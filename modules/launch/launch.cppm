// How ranks start and meet.
export module tessera.launch;

export import :start;  // one process per rank, ranks as threads, joining another launcher
