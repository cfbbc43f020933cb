package Files;
# Whole files, byte by byte, for the scripts of the tests.
use strict;
use warnings;
use Exporter qw(import);
our @EXPORT_OK = qw(text_of write_file);

sub text_of {
  my ($path) = @_;
  open my $file, '<:raw', $path or die "$path: $!\n";
  local $/;
  return scalar <$file>;
}

sub write_file {
  my ($path, $bytes) = @_;
  open my $file, '>:raw', $path or die "$path: $!\n";
  print {$file} $bytes;
  close $file or die "$path: $!\n";
}

1;
