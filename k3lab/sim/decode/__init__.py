"""From lowered IR to what runs: control flow, one Python function a block, every memory operation made once."""
