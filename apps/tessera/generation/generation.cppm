export module tessera.app.generation;

export import :generate;  // text that a checkpoint's model generates
