"""The page of `stash ui`: what a cluster, or the files of one that is gone, has to show, in a browser.

Facts are collected by whoever knows them (`lineage_stash.cli`), put together here for the page (`live`, `files`), and
served with the page itself (`server`) to whoever has the key (`access`). Nothing here changes anything, and nobody is
asked for anything while no page is open.
"""
