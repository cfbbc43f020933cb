#!/usr/bin/env perl
# Trains a small model for 3 steps on the CPU and on emulated GPUs: the losses and the norms of the gradients agree.
#   train.pl PROGRAM EMULATOR KERNELS RUN PLUGIN...
# RUN: a Llama on one_rank, fsdp (2 ranks), offload (fsdp, with everything in pinned memory), tensor (2 x 2); packed, packed_bf16: a Gemma 2 with windows and caps, on
# rows of several documents; float8: a Llama on one rank, all of whose products in 8 bits are cuBLASLt's
use strict;
use warnings;
use File::Temp qw(tempdir);
use FindBin;
use lib $FindBin::RealBin, "$FindBin::RealBin/../support";
use EmulatedRun qw(use_emulator text_to_train_on small_llama training run steps_in compare_steps);
use Files qw(text_of write_file);

my ($program, $emulator, $kernels, $run, @plugins) = @ARGV;
my $fsdp = qq([[parallel]]\nstyle = "FSDP"\naxis = "shard"\non = ["model.layers.*", "."]\n);
my %styles = (
  one_rank => '',
  float8 => qq([[parallel]]\nstyle = "Float8"\non = ["model.layers.*.self_attn.{q,k,v,o}_proj", "model.layers.*.mlp.{gate,up,down}_proj"]\n),
  packed => '',
  packed_bf16 => '',
  fsdp => qq([mesh]\naxes = ["shard"]\nshape = [2]\n$fsdp),
  offload => qq([mesh]\naxes = ["shard"]\nshape = [2]\n[[parallel]]\nstyle = "Offload"\non = ["."]\n$fsdp),
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
my ($precision, $tolerance) = $run =~ /bf16|float8/ ? ('bf16', 1e-2) : ('f32', 1e-5);
my $folder = tempdir(CLEANUP => 1);
use_emulator($emulator, $kernels, 4);
text_to_train_on("$folder/text");
write_file("$folder/sums.jsonl", join '', map { qq({"prompt": "$_ + $_ =", "completion": ") . 2 * $_ . qq("}\n) } 1 .. 60);
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
write_file("$folder/run.toml", ($run =~ /packed/ ? $gemma : small_llama("$folder/text")) . training($precision, $styles{$run}));

# Of each step: loss, norm.
sub steps_on {
  my ($device, @options) = @_;
  my $metrics = "$folder/metrics.jsonl";
  unlink $metrics;
  my @command = ($program, 'train', "$folder/run.toml", (map { ('--plugin', $_) } @plugins), "train.device=$device",
    "log.metrics=$metrics", "checkpoint.folder=''", @options);
  my ($status, $text) = run("$folder/log", @command);
  die "'@command' fails:\n$text" if $status != 0;
  return steps_in($metrics, 3);
}

if ($run eq 'float8') {
  # The library's kernels need sizes that are multiples of 16. A product of our own kernel's is an error, and a copy of
  # codes that are turned, where there need be none.
  my @sizes = ('model.ffn_dim=48', 'data.seq_len=24', 'train.batch=4', 'train.micro_batch=2');
  my %ways = (
    rowwise => ['parallel[0].options={ scaling = "rowwise" }'],
    turned => ['parallel[0].options={ turned_weights = true }'],
    accumulating => ['graph.capture=true', 'graph.transforms=["AccumulatingProducts"]'],
    accumulating_turned => ['graph.capture=true', 'graph.transforms=["AccumulatingProducts"]',
      'parallel[0].options={ turned_weights = true }'],
  );
  for my $way (sort keys %ways) {
    $ENV{TESSERA_EMULATOR_WITHOUT} = $way eq 'accumulating' ? 'scaled_product' : 'scaled_product:turn_codes';
    my @options = (@sizes, @{$ways{$way}});
    my @wanted = steps_on('cpu', @options);
    compare_steps($way, \@wanted, [steps_on('cuda', @options)], $tolerance);
    compare_steps("$way, as graphs", \@wanted, [steps_on('cuda', @options, 'graph.device_graphs=true')], $tolerance)
      if $way =~ /accumulating/;
  }
  eval { steps_on('cuda', @sizes); 1 } and die "the codes of weights are not turned\n";
  die "a kernel that is not there is another error: $@" unless $@ =~ /turn_codes/;
  eval { steps_on('cuda', @sizes, 'data.seq_len=20'); 1 } and die "40 rows are not our own kernel's\n";
  die "a kernel that is not there is another error: $@" unless $@ =~ /scaled_product/;
  print "3 steps agree\n";
  exit 0;
}

my @wanted = steps_on('cpu');
my $bits;
for my $seed (0, 5) {
  $ENV{TESSERA_EMULATOR_SEED} = $seed;
  my @found = steps_on('cuda');
  compare_steps('the steps', \@wanted, \@found, $tolerance);
  my $text = join ' ', map { @$_ } @found;
  $bits //= $text;
  die "another order of streams, blocks and threads gives other bits: $text, not $bits\n" unless $text eq $bits;
}
# Captured steps have these bits too: as graphs of the device, and with compiled chains in them.
if ($run eq 'one_rank' || $run eq 'fsdp' || $run eq 'offload') {
  for my $executor (qw(planned compiled)) {
    my @found = steps_on('cuda', 'graph.capture=true', "graph.executor=$executor", 'graph.device_graphs=true');
    my $text = join ' ', map { @$_ } @found;
    die "$executor, as graphs, gives other bits: $text, not $bits\n" unless $text eq $bits;
  }
}
# Through NCCL's symmetric windows, which hold every gather of this model.
if ($run eq 'fsdp') {
  local $ENV{TESSERA_NCCL_WINDOW} = 1;
  for my $how ([], ['graph.capture=true']) {
    my $text = join ' ', map { @$_ } steps_on('cuda', @$how);
    die "through symmetric windows, @$how, the bits are others: $text, not $bits\n" unless $text eq $bits;
  }
  local $ENV{TESSERA_EMULATOR_NCCL} = 22603;
  eval { steps_on('cuda'); 1 } and die "a run with windows that NCCL has not is not refused\n";
  die "an NCCL without windows is another error: $@" unless $@ =~ /TESSERA_NCCL_WINDOW: NCCL has no symmetric windows/;
}
print "3 steps agree: $bits\n";

# The metrics have what tensors hold in the GPU's memory.
if ($run eq 'one_rank') {
  my ($parameters) = text_of("$folder/metrics.jsonl") =~ /"memory_peaks":.*"parameter":(\d+).*\n\z/;
  die "the metrics file says that parameters hold nothing\n" unless $parameters;
}

# What is kept elsewhere takes nothing of a GPU's memory in planned steps: parameters, gradients and state.
if ($run eq 'offload') {
  my ($status, $text) = run("$folder/log", $program, 'train', "$folder/run.toml", (map { ('--plugin', $_) } @plugins),
    'train.device=cuda', 'graph.capture=true', "checkpoint.folder=''");
  my $kept = bytes($text =~ /kept elsewhere +(\S+ \S+) per rank/ ? $1 : '');
  my ($needs, $of_it) = map { bytes($_) } $text =~ /captured step .* needs (\S+ \S+), (\S+ \S+) of it kept elsewhere;/
    or die "the plan does not say what is kept elsewhere:\n$text";
  my ($peak) = map { bytes($_) } $text =~ /peak memory of rank 0: (\S+ \S+):/ or die "no peak:\n$text";
  die "$needs bytes are planned, $of_it of them elsewhere, and $kept; a GPU has had $peak\n"
    unless $status == 0 && $kept > 0 && $kept == $of_it && $peak <= $needs - $kept / 2;
}

sub bytes {
  my ($text) = @_;
  my ($number, $unit) = $text =~ /^([\d.]+) ([KMG])iB$/ or die "'$text' is no number of bytes\n";
  return $number * 1024 ** (1 + index('KMG', $unit));
}

# A step whose operators have no kernel is refused before the ranks start, with their names.
if ($run eq 'one_rank') {
  my $text = refusal('model.dropout=0.1');
  die "an operator without a kernel is not refused:\n$text"
    unless $text =~ /train\.device: 'cuda' has no kernels for operators of the step: dropout\b/;
}

# Graphs need a device that has some, and an executor that plans.
if ($run eq 'one_rank') {
  my %refused = (
    'only captured steps become graphs' => ['graph.capture=false'],
    'the CPU has no graphs' => ['train.device=cpu'],
    'the interpreter calls each operator anew' => ['graph.executor=interpreter'],
  );
  for my $why (keys %refused) {
    my $text = refusal('graph.capture=true', 'graph.device_graphs=true', @{$refused{$why}});
    die "expected '$why', got:\n$text" unless index($text, $why) >= 0;
  }
}

# Steps that do not fit into the 4 GiB of a device, less 1 GiB for its context and libraries, are refused before the ranks start, with what would fit.
sub refusal {
  my (@options) = @_;
  my ($status, $text) = run("$folder/log", $program, 'train', "$folder/run.toml", (map { ('--plugin', $_) } @plugins),
    'train.device=cuda', '--dry-run', "checkpoint.folder=''", @options);
  return $status == 0 ? 'nothing is refused' : $text;
}
if ($run eq 'one_rank') {
  my @large = ('model.dim=1024', 'model.heads=16', 'model.kv_heads=16', 'model.ffn_dim=4096');
  my %refused = (
    'share the parameters \(FSDP\) over more ranks' => [refusal(@large, 'model.layers=20')],
    'set train\.micro_batch = 64, which fits' => [refusal(@large, 'model.layers=8', 'train.batch=1024')],
  );
  for my $advice (keys %refused) {
    my ($text) = @{$refused{$advice}};
    die "expected '$advice', got:\n$text"
      unless $text =~ /cuda:0 has too little memory for a rank's step: .*got 3\.0 GiB free of 4\.0 GiB\); $advice/;
  }
  my $too_large = refusal(@large, 'model.layers=8', 'train.batch=1024', 'train.micro_batch=256');
  die "what fits without a context is not refused:\n$too_large" unless $too_large =~ /\(expected 4\.0 GiB, got 3\.0 GiB free/;
  my $fits = refusal(@large, 'model.layers=8', 'train.batch=1024', 'train.micro_batch=64');
  die "what fits is refused:\n$fits" unless $fits eq 'nothing is refused';
}

# Groups of ranks take some more of it, where NCCL moves their data.
if ($run eq 'fsdp') {
  my @large = ('model.dim=1024', 'model.heads=16', 'model.kv_heads=16', 'model.ffn_dim=4096', 'model.layers=40');
  my $text = refusal(@large);
  die "groups take nothing:\n$text" unless $text =~ /got 3\.0 GiB free of 4\.0 GiB, 600\.0 MiB of it for groups of ranks\)/;
  $text = refusal(@large, 'mesh.device_collectives=host');
  die "groups of the host take something:\n$text" unless $text =~ /got 3\.0 GiB free of 4\.0 GiB\)/;
}

# The libraries of CUDA and NCCL, as `tessera doctor` shows them and as a run needs NCCL's.
exit 0 unless $run eq 'fsdp';
$ENV{XDG_DATA_HOME} = "$folder/data";
if (`$program doctor` !~ /^ *collectives /m) {  # they are not installed beside the program
  system('mkdir', '-p', "$folder/data/tessera/plugins") == 0 && system('cp', @plugins, "$folder/data/tessera/plugins/") == 0 or die;
}
my $doctor = `TESSERA_NCCL_WINDOW=8 $program doctor`;
die "doctor does not show the windows:\n$doctor" unless $doctor =~ /collectives +cuda: NCCL 2\.28\.9, windows of 8 MiB \(by nccl\.so\)/;
$doctor = `$program doctor`;
die "doctor does not show the libraries:\n$doctor"
  unless $doctor =~ /libraries +cuda: cuBLASLt 13\.0\.1, cuDNN 9\.19\.0, NVRTC 13\.0$/m && $doctor =~ /collectives +cuda: NCCL 2\.28\.9 \(by nccl\.so\)/;
mkdir "$folder/none";
write_file("$folder/none/$_", 'not a library') for 'libnccl.so.2', 'libcudnn.so.9';
$ENV{LD_LIBRARY_PATH} = "$folder/none:$ENV{LD_LIBRARY_PATH}";
$doctor = `$program doctor`;
die "doctor does not say that cuDNN is not found:\n$doctor"
  unless $doctor =~ /libraries +cuda: cuBLASLt 13\.0\.1, NVRTC 13\.0$/m && $doctor =~ /cuda: cuDNN is not found: attention is .*pip install nvidia-cudnn-cu13/;
die "doctor does not show that there is no library:\n$doctor" unless $doctor =~ /NCCL's library cannot be opened.*install NCCL/;
my $text = '';
eval { steps_on('cuda'); 1 } or $text = $@;
die "a run without NCCL's library ends with:\n$text"
  unless $text =~ /collectives 'cuda': NCCL's library cannot be opened.*install NCCL 2\.18 or later/;
my $through_host = join ' ', map { @$_ } steps_on('cuda', 'mesh.device_collectives=host');
die "through the host's memory the bits are others: $through_host, not $bits\n" unless $through_host eq $bits;
