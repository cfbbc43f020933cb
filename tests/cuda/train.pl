#!/usr/bin/env perl
# Trains a small model for 3 steps on the CPU and on emulated GPUs: the losses and the norms of the gradients agree.
#   train.pl PROGRAM EMULATOR KERNELS RUN PLUGIN...
# RUN: a Llama on one_rank, fsdp (2 ranks), tensor (2 x 2); packed, packed_bf16: a Gemma 2 with windows and caps, on
# rows of several documents
use strict;
use warnings;
use File::Temp qw(tempdir);
use FindBin;
use lib "$FindBin::RealBin/../support";
use Files qw(write_file);

my ($program, $emulator, $kernels, $run, @plugins) = @ARGV;
my $fsdp = qq([[parallel]]\nstyle = "FSDP"\naxis = "shard"\non = ["model.layers.*", "."]\n);
my %styles = (
  one_rank => '',
  packed => '',
  packed_bf16 => '',
  fsdp => qq([mesh]\naxes = ["shard"]\nshape = [2]\n$fsdp),
  tensor => <<"TOML",
[mesh]
axes = ["shard", "tensor"]
shape = [2, 2]
[[parallel]]
style = "ColwiseParallel"
axis = "tensor"
on = ["model.layers.*.self_attn.{q,k,v}_proj", "model.layers.*.mlp.{gate,up}_proj"]
[[parallel]]
style = "RowwiseParallel"
axis = "tensor"
on = ["model.layers.*.self_attn.o_proj", "model.layers.*.mlp.down_proj"]
$fsdp
TOML
);
die "usage: train.pl PROGRAM EMULATOR KERNELS RUN PLUGIN...\n" unless @plugins && defined $styles{$run};
my ($precision, $tolerance) = $run =~ /bf16/ ? ('bf16', 1e-2) : ('f32', 1e-5);
my $folder = tempdir(CLEANUP => 1);
$ENV{LD_LIBRARY_PATH} = join ':', $emulator, grep { defined && length } $ENV{LD_LIBRARY_PATH};
$ENV{TESSERA_EMULATOR_KERNELS} = $kernels;
$ENV{TESSERA_EMULATOR_DEVICES} = 4;

write_file("$folder/text", join ' ', map { "the number " . $_ * $_ . " is the square of $_;" } 1 .. 400);
write_file("$folder/sums.jsonl", join '', map { qq({"prompt": "$_ + $_ =", "completion": ") . 2 * $_ . qq("}\n) } 1 .. 60);
my $llama = <<"TOML";
[model]
family = "llama"
dim = 16
layers = 2
heads = 2
kv_heads = 2
ffn_dim = 24
[data]
text = ["$folder/text"]
tokenizer = "bytes"
seq_len = 12
validation = 0
TOML
my $gemma = <<"TOML";
[model]
family = "gemma2"
dim = 16
layers = 2
heads = 2
kv_heads = 1
head_dim = 16
ffn_dim = 24
window = 9
attention_softcap = 2
logit_softcap = 3
[data]
jsonl = ["$folder/sums.jsonl"]
packing = "documents"
seq_len = 40
validation = 0
TOML
write_file("$folder/run.toml", ($run =~ /packed/ ? $gemma : $llama) . <<"TOML");
[train]
steps = 3
batch = 2
clip_grad_norm = 1.0
precision = "$precision"
[optimizer]
name = "adamw"
lr = 1e-2
$styles{$run}
TOML

# Of each step: loss, norm.
sub steps_on {
  my ($device) = @_;
  my $metrics = "$folder/metrics.jsonl";
  unlink $metrics;
  my @command = ($program, 'train', "$folder/run.toml", (map { ('--plugin', $_) } @plugins), "train.device=$device",
    "log.metrics=$metrics", "checkpoint.folder=''");
  my $log = "$folder/log";
  if (system("@command >$log 2>&1 </dev/null") != 0) {
    open my $file, '<', $log or die "$log: $!\n";
    die "'@command' fails:\n", <$file>;
  }
  open my $file, '<', $metrics or die "$metrics: $!\n";
  my @steps = map { [/"loss":\s*([^,}]+)/, /"grad_norm":\s*([^,}]+)/] } grep { /"loss"/ } <$file>;
  die "$metrics: there are " . @steps . " steps (expected 3)\n" unless @steps == 3;
  return @steps;
}

my @wanted = steps_on('cpu');
my $bits;
for my $seed (0, 5) {
  $ENV{TESSERA_EMULATOR_SEED} = $seed;
  my @found = steps_on('cuda');
  for my $step (0 .. 2) {
    for my $what (0, 1) {
      my ($w, $f) = ($wanted[$step][$what], $found[$step][$what]);
      die "step $step, ", ('loss', 'norm')[$what], ": $f on the GPU, $w on the CPU\n" unless abs($f - $w) <= $tolerance * (1 + abs $w);
    }
  }
  my $text = join ' ', map { @$_ } @found;
  $bits //= $text;
  die "another order of streams, blocks and threads gives other bits: $text, not $bits\n" unless $text eq $bits;
}
print "3 steps agree: $bits\n";

# NCCL's library, as `tessera doctor` shows it and as a run needs it.
exit 0 unless $run eq 'fsdp';
my $nccl = $plugins[-1];
$ENV{XDG_DATA_HOME} = "$folder/data";
if (`$program doctor` !~ /^ *collectives /m) {  # it is not installed beside the program
  system('mkdir', '-p', "$folder/data/tessera/plugins") == 0 && system('cp', $nccl, "$folder/data/tessera/plugins/") == 0 or die;
}
my $doctor = `$program doctor`;
die "doctor does not show the library:\n$doctor" unless $doctor =~ /collectives +cuda: NCCL 2\.28\.9 \(by nccl\.so\)/;
mkdir "$folder/none";
write_file("$folder/none/libnccl.so.2", 'not a library');
$ENV{LD_LIBRARY_PATH} = "$folder/none:$ENV{LD_LIBRARY_PATH}";
$doctor = `$program doctor`;
die "doctor does not show that there is no library:\n$doctor" unless $doctor =~ /NCCL's library cannot be opened.*install NCCL/;
my $text = '';
eval { steps_on('cuda'); 1 } or $text = $@;
die "a run without NCCL's library ends with:\n$text"
  unless $text =~ /collectives 'cuda': NCCL's library cannot be opened.*install NCCL 2\.18 or later/;
$ENV{TESSERA_DEVICE_COLLECTIVES} = 'host';
my $through_host = join ' ', map { @$_ } steps_on('cuda');
die "through the host's memory the bits are others: $through_host, not $bits\n" unless $through_host eq $bits;
