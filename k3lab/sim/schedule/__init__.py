"""Who runs when: waves that stand together, devices and their launches, waiting loops, orders of events."""
