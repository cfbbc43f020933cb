export module tessera.app.adapters;

export import :updates;      // a model's low-rank updates, and its weights with them
export import :nf4;          // weights of 4 bits
export import :peft;         // folders in PEFT's format
export import :peft_config;  // adapter_config.json
